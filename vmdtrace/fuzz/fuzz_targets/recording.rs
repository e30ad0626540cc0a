#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vmdtrace::snapshot::recording::fuzzing::run(input));
