//! Oracles, operation generators and crash enumeration for tests
