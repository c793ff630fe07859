//! The program: see `oncegate --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    oncegate::cli::main()
}
