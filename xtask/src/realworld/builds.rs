//! Two projects to build on a mount: one for make and a C compiler, one for Cargo.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::run::{Failure, Outcome, Step, workspace_root};

/// Source files of the C project.
const C_FILES: u32 = 60;

/// Writes a C project to `dir`, builds it, runs it, and checks that a second make has nothing to do.
pub(super) fn make(dir: &Path) -> Result<String, Failure> {
    fs::create_dir_all(dir.join("src"))?;
    let mut declarations = String::from("#pragma once\n");
    let mut calls = String::new();
    for at in 0..C_FILES {
        writeln!(declarations, "long part_{at}(long n);")?;
        writeln!(calls, "    sum += part_{at}({at});")?;
        let source = format!(
            "#include \"parts.h\"\nstatic long table[256];\nlong part_{at}(long n) {{\n    \
             for (int i = 0; i < 256; i++) table[i] = i * n + {at};\n    return table[n % 256];\n}}\n"
        );
        fs::write(dir.join(format!("src/part_{at}.c")), source)?;
    }
    fs::write(dir.join("src/parts.h"), declarations)?;
    let main = format!(
        "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {{\n    long sum = 0;\n{calls}    \
         printf(\"%ld\\n\", sum);\n    return 0;\n}}\n"
    );
    fs::write(dir.join("src/main.c"), main)?;
    fs::write(
        dir.join("Makefile"),
        "SOURCES := $(wildcard src/*.c)\nOBJECTS := $(SOURCES:src/%.c=build/%.o)\n\n\
         build/program: $(OBJECTS)\n\t$(CC) -o $@ $^\n\n\
         build/%.o: src/%.c src/parts.h\n\t@mkdir -p build\n\t$(CC) -O1 -c -o $@ $<\n",
    )?;
    Step::new("make").arg("-j2").dir(dir).quiet()?;
    let answer = Step::new(dir.join("build/program")).capture()?;
    let again = Step::new("make").dir(dir).capture()?;
    if !again.contains("up to date") {
        return Err(format!("a second make found work to do: {again}").into());
    }
    Ok(answer)
}

/// Copies the crate varve-types to `dir` as a workspace of its own, builds it and runs its tests.
pub(super) fn cargo(dir: &Path) -> Outcome {
    let repository = workspace_root();
    fs::create_dir_all(dir)?;
    Step::new("cp").arg("-r").arg(repository.join("crates/varve-types/src")).arg(dir).quiet()?;
    fs::copy(repository.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    fs::write(
        dir.join("Cargo.toml"),
        "[package]\nname = \"varve-types\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nthiserror = \"2\"\n\n[workspace]\n",
    )?;
    Step::new("cargo")
        .args(["test", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .dir(dir)
        .quiet()
}
