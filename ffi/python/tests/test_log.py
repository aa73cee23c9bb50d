"""Warnings of adapters."""

from kvrail import _log


def test_a_kind_of_warning_is_logged_once_and_then_counted(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr(_log.time, "monotonic", lambda: now)
    warnings = _log.Warnings()
    for number in range(400):
        warnings.warn("load", "%d pages", number)
    warnings.warn("other", "no sidecar")
    now += _log.EACH_S
    warnings.warn("load", "%d pages", 512)
    warnings.warn("load", "%d pages", 513)
    assert [record.getMessage() for record in caplog.records] == [
        "0 pages",
        "no sidecar",
        "512 pages (399 more since the last such line)",
    ]
