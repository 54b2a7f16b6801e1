#![no_main]

use varve_schema::acl::Acl;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(Some(acl)) = Acl::decode(data) {
        assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl.clone())));
        let mut followed = acl.clone();
        followed.follow_mode(acl.mode());
        assert_eq!(followed, acl);
        let (inherited, mode) = acl.inherit(0o777);
        assert_eq!((inherited, mode), (acl.clone(), acl.mode()));
    }
});
