//! Calls of a server without a mount. The test says so and passes where there is no `varve` beside this program.

use std::path::Path;

use varve_testkit::skipped;

use crate::support::report;

#[test]
fn every_call_is_made_of_every_file_and_counted() {
    if !Path::new(env!("CARGO_BIN_EXE_varve-bench")).with_file_name("varve").exists() {
        return skipped("there is no varve beside varve-bench");
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let args = ["rpc", "--json", "--rounds", "1", "--files", "600"];
    let clients = ["--clients", "1", "--clients", "3", "--depth", "1", "--depth", "7"];
    let found =
        report(dir.path(), &[&args[..], &clients, &["--by", "frames", "--by", "client"]].concat());
    let calls = found["calls"].as_array().expect("calls");
    // Eight calls by two means at two depths: one client, three in own directories, three in a shared one.
    assert_eq!(calls.len(), 8 * 2 * 2 * 3);
    for it in calls {
        let number = |what: &str| it[what].as_f64().unwrap_or_else(|| panic!("{what} of {it}"));
        let median =
            |what: &str| it[what]["median"].as_f64().unwrap_or_else(|| panic!("{what} of {it}"));
        let (call, clients) = (it["call"].as_str().expect("a call"), number("clients"));
        // A listing has the names . and .. as well.
        let expected = match (call, it["dirs"].as_str()) {
            ("readdir", Some("own")) => 600.0 + 2.0 * clients,
            ("readdir", _) => 602.0 * clients,
            _ => 600.0,
        };
        assert_eq!(number("count"), expected, "{it}");
        assert!(median("thousands_per_second") > 0.0 && median("client_us") > 0.0, "{it}");
        assert!(median("server_us") > 0.0, "{it}");
        if it["by"] == "frames" {
            let expected = match call {
                "create" => 2.0..2.1,
                "readdir" => 0.001..0.1,
                _ => 1.0..1.1,
            };
            assert!(expected.contains(&number("requests")), "{it}");
            assert!(number("sent_bytes") > 0.0 && number("received_bytes") > 0.0, "{it}");
        }
    }
    let left = std::fs::read_dir(dir.path()).expect("the directory").count();
    assert_eq!(left, 0, "nothing stays behind");
}
