//! Tests of the client against a fake sidecar.
