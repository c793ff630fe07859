//! `oncegate config`

use std::process::ExitCode;

use clap::Subcommand;
use schemars::{Schema, SchemaGenerator};

use super::{Source, print};
use crate::config::{self, Backends, Destination};
use crate::{push, store, transport};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check the configuration without starting anything: prints `ok`, or every mistake with its key and line
    #[command(
        after_help = "Nothing is connected to. Exit status: 0 if it is accepted, 2 if it is refused.\n\n\
                            Example:\n  oncegate config check --config oncegate.toml"
    )]
    Check,
    /// Print the JSON Schema of the configuration, for editors
    #[command(after_help = "Example:\n  oncegate config schema > oncegate.schema.json\n\n\
                            and in the first line of oncegate.toml, for editors that know it:\n  \
                            #:schema ./oncegate.schema.json")]
    Schema,
    /// Print a configuration file with every key, its default and what it means
    #[command(after_help = "Example:\n  oncegate config example > oncegate.toml")]
    Example,
}

pub(super) fn run(command: Command, source: &Source) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check => {
            source.load()?;
            print("ok\n")
        }
        Command::Schema => {
            let schema = config::schema(&Registries);
            print(&format!("{schema:#}\n"))
        }
        Command::Example => print(&config::example(&Registries)),
    }
}

/// What this program can connect to, for the configuration to be checked against.
pub(super) struct Registries;

impl Backends for Registries {
    fn engines(&self) -> Vec<&'static str> {
        store::registry::SCHEMES.to_vec()
    }

    fn transports(&self) -> Vec<&'static str> {
        transport::registry::names().collect()
    }

    fn check(&self, destination: &Destination) -> Result<(), (String, String)> {
        let common = transport::Common {
            timeout: destination.timeout.get(),
            format: destination.format,
            max_in_flight: destination.max_in_flight.map(|number| number as usize),
        };
        transport::registry::check(&destination.transport, destination.settings.clone(), &common)
            .map_err(|error| (error.key, error.text))
    }

    fn formats(&self) -> Vec<config::Format> {
        let format =
            |kind: &push::Kind| config::Format { name: kind.name, keys: kind.keys, needs: kind.needs };
        push::registry::FORMATS.into_iter().map(format).collect()
    }

    fn check_receiver(&self, receiver: &config::Receiver) -> Vec<(&'static str, String)> {
        push::registry::build(receiver).err().unwrap_or_default()
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
        transport::registry::schemas(generator)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_example_is_accepted_as_it_is_and_with_every_key_set() {
        let folder = std::env::temp_dir().join(format!("oncegate-whole-example-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("schemas")).unwrap();
        std::fs::write(folder.join("schemas/order-created.json"), "{}").unwrap();
        std::fs::write(folder.join("sns.pem"), include_str!("../../tests/push/keys/sns-test-cert.pem"))
            .unwrap();
        let example = config::example(&Registries);
        let all: String = example
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.starts_with(' ') => format!("{key}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let check = |text: &str| {
            let file: &Path = &folder.join("oncegate.toml");
            std::fs::write(file, text).unwrap();
            config::load(Some(file), [], &Registries).map_err(|errors| errors.to_string())
        };
        let (as_it_is, with_all) = (check(&example), check(&all));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(as_it_is.unwrap().destinations.contains_key("stdout"));
        let with_all = with_all.unwrap();
        assert_eq!(with_all.destinations.len(), transport::registry::names().count());
        assert_eq!(with_all.receivers.len(), push::registry::FORMATS.len());
        let schema = config::schema(&Registries);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let value = serde_json::to_value(all.parse::<toml::Table>().unwrap()).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }
}
