"""Causes of findings that only a verification has."""

from __future__ import annotations

from porter.findings import FindingKind

VERIFY_KINDS: dict[str, FindingKind] = {
    code: FindingKind(code, name, title)
    for code, name, title in (
        ("PV001", "case-failed", "An upstream test case fails on the backend."),
        ("PV002", "kernel-missing", "A test calls a kernel that the backend neither has nor leaves out on purpose."),
        ("PV003", "write-outside-mask", "A kernel wrote memory that its contract does not let it write."),
        ("PV004", "skip-unknown", "A test case was skipped and no known skip names it."),
        ("PV005", "skip-count", "A known skip covers another number of cases than it says."),
        ("PV006", "cap-exceeded", "A shrunk test case went over its memory or time cap."),
        ("PV007", "process-died", "The test process died in a test case."),
        ("PV008", "collection-failed", "An upstream test file cannot be collected."),
        ("PV009", "nothing-ran", "No test case ran."),
        ("PV010", "catalogue-outdated", "The catalogue of upstream's tests does not say what the tests do."),
        ("PV011", "not-a-stub", "A factory that is left out on purpose is not a stub."),
        ("PV012", "backend-unimportable", "The emitted backend cannot be imported."),
        ("PV014", "no-mask", "A kernel ran without write masks although masks were given."),
        ("PV015", "device-refuses", "A kernel does what the device refuses or pays dearly for."),
        ("PV013", "cases-lost", "Test cases were collected and never finished."),
    )
}
