#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| vmd_device::fuzzing::queues(input));
