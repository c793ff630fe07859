# What one types daily. `just --list` shows it.

# Everything: installs what is missing, then every check and test.
test *FILTER:
    scripts/test {{FILTER}}

# Formats, then lints as CI does.
check:
    cargo fmt
    cargo clippy --all-targets -- -D warnings

# The quick tests: nothing that starts a server or takes long.
quick:
    cargo nextest run -E 'not test(/^scenario_/)'

# The gateway on its embedded default.
run:
    cargo run -- serve

# A local receiver that prints what arrives.
listen PORT='9000':
    cargo run -- listen --port {{PORT}}

# The API's documentation of the code.
doc:
    cargo doc --no-deps --document-private-items --open

# Writes openapi/openapi.json anew.
openapi:
    ONCEGATE_WRITE_OPENAPI=1 cargo test --test all openapi::the_committed

# The promises about large numbers, in full, with what was measured.
full:
    ONCEGATE_FULL=1 cargo nextest run -E 'test(/of_many_each_is_sent|many_dead_letters_hold|groups_of_ends/)' --no-capture
