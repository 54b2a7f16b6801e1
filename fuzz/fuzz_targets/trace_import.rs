#![no_main]

use varve_trace::import::{Source, import};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for source in [Source::Hdfs, Source::Nfs, Source::Strace] {
        let (mut input, mut records) = (data, 0);
        let imported = import(source, &mut input, &mut |record| {
            records += u64::from(record.op != varve_trace::Op::Known);
            Ok(())
        });
        if let Ok(imported) = imported {
            assert_eq!(imported.records, records);
        }
    }
});
