//! Configuration as the program takes it: exit status, what is said on which stream, and the environment.

use std::fs;
use std::process::{Command, Output};

use crate::support::gateway::command;
use crate::support::{postgres, run};

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `oncegate` in a folder of its own with this environment alone.
fn with_env(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(args).current_dir(run::fresh_dir("config")).env_clear();
    command.envs(variables.iter().copied()).output().expect("run oncegate")
}

#[test]
fn an_accepted_configuration_is_ok() {
    for config in [None, Some("")] {
        let output = command(&["config", "check"], config);
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), "ok\n"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_refused_configuration_is_status_2_with_the_whole_key_and_line_on_standard_error() {
    let config = "[destinations.orders]\ntransport = \"stdout\"\ncolour = \"red\"\ntimeout = \"0s\"\n\
                  [[routes]]\ntypes = [\"*\"]\ndestinations = [\"order\"]\n";
    for args in [&["config", "check"][..], &["serve"], &[], &["storage", "migrate"]] {
        let output = command(args, Some(config));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(stdout(&output), "", "{args:?}");
        let errors = stderr(&output);
        for expected in [
            "oncegate.toml:3: destinations.orders.colour: there is no such key",
            "oncegate.toml:4: destinations.orders.timeout: must be longer than nothing",
            "oncegate.toml:7: routes[0].destinations[0]: there is no destination `order`; did you mean `orders`?",
        ] {
            assert!(errors.contains(expected), "{args:?}: {errors}");
        }
    }
}

#[test]
fn listening_to_everybody_without_credentials_is_refused() {
    let output = with_env(&[], &[("ONCEGATE__SERVER__LISTEN", "0.0.0.0:0")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).starts_with("ONCEGATE__SERVER__LISTEN: server.listen: 0.0.0.0:0 can be reached"));
}

#[test]
fn a_file_is_found_by_argument_then_variable_then_name() {
    let dir = run::fresh_dir("config");
    // Each of the files is refused, by a key of its own name.
    for name in ["argument", "variable", "oncegate"] {
        fs::write(dir.join(format!("{name}.toml")), format!("{name} = 1\n")).unwrap();
    }
    let refused = |args: &[&str], variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.args(args).current_dir(&dir).env_clear();
        if let Some(path) = variable {
            command.env("ONCEGATE_CONFIG", path);
        }
        stderr(&command.output().unwrap())
    };
    let argument = &["config", "check", "--config", "argument.toml"];
    assert!(refused(argument, Some("variable.toml")).starts_with("argument.toml:1: argument: "));
    assert!(refused(&["--config", "argument.toml"], None).starts_with("argument.toml:1: argument: "));
    assert!(refused(&["config", "check"], Some("variable.toml")).starts_with("variable.toml:1: variable: "));
    assert!(refused(&["config", "check"], None).starts_with("oncegate.toml:1: oncegate: "));
    assert!(refused(&["config", "check"], Some("none.toml")).starts_with("none.toml: cannot be read"));
}

#[test]
fn the_environment_is_checked_like_the_file() {
    let output = with_env(
        &["config", "check"],
        &[("ONCEGATE__SERVER__COLOUR", "red"), ("ONCEGATE__HISTORY__KEEP", "5")],
    );
    assert_eq!(output.status.code(), Some(2));
    let errors = stderr(&output);
    assert!(errors.contains("ONCEGATE__SERVER__COLOUR: server.colour: there is no such key"), "{errors}");
    assert!(errors.contains("ONCEGATE__HISTORY__KEEP: history.keep: `5` is not a duration"), "{errors}");
}

#[test]
fn secrets_come_from_the_environment_and_from_files_and_are_not_printed() {
    let dir = run::fresh_dir("config");
    fs::create_dir(dir.join("etc")).unwrap();
    fs::write(dir.join("etc/shop.key"), "kept-in-a-file-0123456789\n").unwrap();
    let config = "[auth.keys.shop]\nsecrets = [{ file = \"shop.key\" }, { env = \"SHOP_KEY\" }]\ngrants = []\n\
                  [auth.keys.till]\nsecrets = [{ env = \"TILL_KEY\" }]\ngrants = []\n";
    fs::write(dir.join("etc/oncegate.toml"), config).unwrap();
    let check = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.args(["config", "check", "--config", "etc/oncegate.toml"]).current_dir(&dir).env_clear();
        command.envs(variables.iter().copied()).output().unwrap()
    };
    assert_eq!(
        check(&[("SHOP_KEY", "in-the-environment-1"), ("TILL_KEY", "in-the-environment-2")]).status.code(),
        Some(0)
    );
    // The same secret twice: the message names both keys and not the secret.
    let output = check(&[("SHOP_KEY", "in-the-environment-1"), ("TILL_KEY", "in-the-environment-1")]);
    let errors = stderr(&output);
    assert!(errors.contains("auth.keys.till.secrets[0]: is also the secret of `shop`"), "{errors}");
    assert!(!errors.contains("in-the-environment"), "{errors}");
    let errors = stderr(&check(&[("SHOP_KEY", "in-the-environment-1")]));
    assert!(
        errors.contains("auth.keys.till.secrets[0]: the environment variable `TILL_KEY` is not set"),
        "{errors}"
    );
}

#[test]
fn the_example_is_a_configuration_that_is_accepted() {
    let example = command(&["config", "example"], None);
    assert_eq!(example.status.code(), Some(0));
    let output = command(&["config", "check"], Some(&stdout(&example)));
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "ok\n"), "{}", stderr(&output));
}

#[test]
fn the_schema_is_a_json_schema_that_names_the_transports() {
    let output = command(&["config", "schema"], None);
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(jsonschema::meta::is_valid(&schema));
    let transports =
        schema.pointer("/$defs/Destination/properties/transport/enum").unwrap().as_array().unwrap();
    assert!(transports.iter().any(|name| name == "webhook"), "{transports:?}");
}

#[test]
fn wrong_arguments_are_status_2_and_help_is_0() {
    assert_eq!(command(&["fly"], None).status.code(), Some(2));
    assert_eq!(command(&["config"], None).status.code(), Some(2));
    let help = command(&["--help"], None);
    assert_eq!(help.status.code(), Some(0));
    for name in ["serve", "listen", "config", "storage", "--config", "ONCEGATE_CONFIG"] {
        assert!(stdout(&help).contains(name), "{name}");
    }
}

#[test]
fn every_engine_prints_its_migrations() {
    for (engine, url) in [("sqlite", "sqlite:x.db"), ("postgres", "postgres://nowhere.invalid/x")] {
        let config = format!("[stores.main]\nurl = \"{url}\"\n");
        let output = command(&["storage", "migrate", "--print"], Some(&config));
        assert_eq!(output.status.code(), Some(0), "{engine}: {}", stderr(&output));
        assert!(stdout(&output).contains("CREATE TABLE"), "{engine}");
        // Applied by hand, it is known to be applied.
        assert!(stdout(&output).contains("(1, '0001_initial'"), "{engine}: {}", stdout(&output));
    }
}

/// The embedded store brings itself up to date whenever it is opened, so that there is nothing left to apply.
#[test]
fn the_embedded_store_is_made_and_migrated() {
    let dir = run::fresh_dir("config");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    let output = command.args(["storage", "migrate"]).current_dir(&dir).env_clear().output().unwrap();
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "up to date\n"),
        "{}",
        stderr(&output)
    );
    assert!(dir.join("oncegate-data/oncegate.db").exists());
}

#[tokio::test]
async fn a_server_store_is_migrated_once_and_an_unreachable_one_is_a_failure() {
    let Some(postgres) = postgres::shared().await else { return };
    let url = postgres.fresh_database().await;
    let migrate = |url: &str| with_env(&["storage", "migrate"], &[("ONCEGATE__STORES__MAIN__URL", url)]);
    let first = migrate(&url);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    assert!(stdout(&first).starts_with("applied 0001"), "{}", stdout(&first));
    assert_eq!(stdout(&migrate(&url)), "up to date\n");

    let nowhere = format!("postgres://gate:hunter2@127.0.0.1:{}/x", run::free_port());
    let failed = migrate(&nowhere);
    assert_eq!((failed.status.code(), stdout(&failed).as_str()), (Some(1), ""));
    assert!(
        stderr(&failed).contains("stores.main") && !stderr(&failed).contains("hunter2"),
        "{}",
        stderr(&failed)
    );
}
