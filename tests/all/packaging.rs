//! The image and the chart, as far as can be told without an engine or a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::gateway::command;
use super::support::{missing, run};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The instructions of the Dockerfile, with continued lines joined.
fn instructions() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("Dockerfile")).unwrap().replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned())).unwrap()
        })
        .collect()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// What the image is built from is there, is sent to the builder, and is a whole package.
#[test]
fn the_image_is_built_from_what_is_there() {
    let ignored = fs::read_to_string(root().join(".dockerignore")).unwrap();
    assert_eq!(ignored.lines().next(), Some("*"), "everything else is left out");
    let folder = run::fresh_dir("image");
    let mut copied = Vec::new();
    for (name, rest) in instructions() {
        if name != "COPY" || rest.starts_with("--from") {
            continue;
        }
        let words: Vec<&str> = rest.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(ignored.lines().any(|line| line == format!("!{source}")), "{source} is not sent");
            if *source != "LICENSE" {
                copy(&root().join(source), &folder.join(source));
            }
            copied.push((*source).to_owned());
        }
    }
    assert!(copied.iter().any(|source| source == "LICENSE"));
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    // Files that the program takes in when it is compiled are in what is copied.
    let mut sources = vec![folder.join("src")];
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            sources.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("tests.rs") {
            for taken in taken_in(&path) {
                assert!(taken.exists(), "{} takes in {}", path.display(), taken.display());
            }
        }
    }
}

/// The files that a source names in `include_str!` and `include_bytes!`.
fn taken_in(source: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(source).unwrap();
    // What only its tests take in is not compiled into the image.
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let calls = text.match_indices("include_str!(").chain(text.match_indices("include_bytes!("));
    let named = calls.filter_map(|(at, _)| text[at..].split('"').nth(1));
    named.map(|path| source.parent().unwrap().join(path)).collect()
}

/// It runs the gateway, not as root and without a shell, and its health check is a command of the program.
#[test]
fn the_image_runs_the_program_alone_and_not_as_root() {
    let all = instructions();
    let last_stage = all.iter().rposition(|(name, _)| name == "FROM").unwrap();
    let (build, image) = all.split_at(last_stage);
    assert!(
        build.iter().any(|(name, rest)| name == "RUN" && rest.contains("cargo build --release --locked"))
    );
    assert!(image[0].1.contains("distroless") && image.iter().all(|(name, _)| name != "RUN"), "no shell");
    let minimum = env!("CARGO_PKG_RUST_VERSION");
    assert!(build[0].1.starts_with(&format!("rust:{minimum}")), "{}", build[0].1);
    let of =
        |name: &str| image.iter().find(|(other, _)| other == name).map(|(_, rest)| rest.as_str()).unwrap();
    assert!(!of("USER").starts_with("root") && !of("USER").starts_with('0'));
    assert_eq!(of("STOPSIGNAL"), "SIGTERM");
    let exec =
        |text: &str| -> Vec<String> { serde_json::from_str(&text[text.find('[').unwrap()..]).unwrap() };
    let installed = &exec(of("ENTRYPOINT"))[0];
    assert!(build.iter().any(|(_, rest)| rest.contains(installed.as_str())), "{installed}");
    let health = exec(of("HEALTHCHECK"));
    assert_eq!(&health[0], installed);
    for arguments in [&health[1..], &exec(of("CMD"))] {
        understood(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let environment = of("ENV").split_once('=').unwrap();
    assert_eq!(environment, ("ONCEGATE__SERVER__LISTEN", "0.0.0.0:8080"));
    assert_eq!(of("EXPOSE"), "8080");
}

/// These are arguments of the program.
fn understood(arguments: &[&str]) {
    let output = command(&[arguments, &["--help"]].concat(), None);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The chart's templates become what Kubernetes takes: probes, a grace period above the drain, no root; its pods' commands
/// are commands of the program, and the configuration it comes with is accepted.
#[test]
fn the_chart_renders_and_its_configuration_is_accepted() {
    let installed = root().join("target/tools/python/bin/python");
    let python = std::env::var_os("ONCEGATE_PYTHON").map_or(installed, PathBuf::from);
    if !python.exists() {
        return missing("Python with PyYAML").unwrap_or_default();
    }
    let output = Command::new(python)
        .arg(root().join("tests/packaging/render.py"))
        .arg(root().join("charts/oncegate"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    let (commands, config) = told.split_once("---\n").unwrap();
    let commands: Vec<Vec<&str>> = commands
        .split("\n\n")
        .flat_map(|part| part.split(':').collect::<Vec<_>>())
        .map(|part| {
            part.lines()
                .filter_map(|line| line.strip_prefix("- "))
                .map(|word| word.trim_matches('\''))
                .collect()
        })
        .filter(|words: &Vec<&str>| !words.is_empty())
        .collect();
    assert_eq!(commands.len(), 2, "{told}");
    for arguments in &commands {
        understood(arguments);
    }
    let folder = run::fresh_dir("chart");
    fs::write(folder.join("oncegate.toml"), config).unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["config", "check"])
        .current_dir(&folder)
        .env("DATABASE_URL", "postgres://gate@db/oncegate")
        .env("APP_KEY", "app-0123456789abcdef")
        .env("OPERATOR_KEY", "operator-0123456789abcdef")
        .env("ONCEGATE__SERVER__LISTEN", "0.0.0.0:8080")
        .env("ONCEGATE__SERVER__DRAIN_TIMEOUT", "20s")
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
