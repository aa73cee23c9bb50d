//! Counters of a device.

counters! {
    /// Counters of a device, but for those that are kept by operation.
    DeviceCounters {
        in_flight: Gauge, "kvrail_device_in_flight", "Operations at the device now.";
        in_flight_bytes: Gauge, "kvrail_device_in_flight_limit_bytes",
            "Bytes of host memory's requests that the device may hold at once now.";
        write_bytes: Gauge, "kvrail_device_write_limit_bytes",
            "Of them bytes of writes: less while demand reads take more than twice their time.";
        registered_bytes: Gauge, "kvrail_device_registered_bytes",
            "Bytes of memory that is registered with the device's ring.";
        unregistered_bytes: Gauge, "kvrail_device_unregistered_bytes",
            "Bytes of memory that is not, because this process may not pin that much: slower.";
        waiting: Gauge, "kvrail_device_waiting", "Requests that wait for the device now.";
        errors: Counter, "kvrail_device_errors", "Operations that did not end OK.";
        late: Counter, "kvrail_device_late",
            "Requests whose deadline passed before they ended.";
        overdue: Gauge, "kvrail_device_overdue", "Requests older than pollers.overdue_after.";
    }
}
