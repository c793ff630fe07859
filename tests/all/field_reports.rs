//! `docs/field-reports.md` names tests that exist.

use std::fs;
use std::path::Path;

fn rust_files(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_field_reports_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    rust_files(&root.join("src"), &mut code);
    rust_files(&root.join("tests"), &mut code);
    let document = fs::read_to_string(root.join("docs/field-reports.md")).unwrap();
    let mut named = 0;
    for row in document.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let column = row.trim_end_matches('|').rsplit('|').next().unwrap();
        for test in column.split('`').skip(1).step_by(2) {
            assert!(code.contains(&format!("fn {test}(")), "docs/field-reports.md names the test {test}");
            named += 1;
        }
        assert!(column.contains('`'), "no test is named: {row}");
    }
    assert!(named > 15, "{named} tests are named");
}
