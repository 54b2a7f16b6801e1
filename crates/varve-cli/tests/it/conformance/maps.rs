//! mmap(2), in a program that maps: `maps.py`.

use crate::semantics::{Place, semantics};
use varve_testkit::{Command, there_is};

semantics!(maps_table);

fn maps_table(place: &Place) {
    if !there_is("python3") {
        return;
    }
    let dir = place.dir().join("maps");
    std::fs::create_dir(&dir).unwrap();
    let output =
        Command::new("python3").args(["-c", include_str!("maps.py")]).arg(&dir).output().unwrap();
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    assert_eq!(said, "17 cases\n");
}
