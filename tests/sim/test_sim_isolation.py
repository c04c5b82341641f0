"""The suite's own processes stay without a device, whatever they collect."""

from __future__ import annotations

from tests.sim.sim_process import ROOT, run

_PROBE = (
    "import sys, pytest\n"
    "class Probe:\n"
    "    def pytest_collection_finish(self, session):\n"
    "        torch = sys.modules.get('torch')\n"
    "        name = torch._C._get_privateuse1_backend_name() if torch else 'privateuseone'\n"
    "        print('registered:', name, len(session.items) > 100)\n"
    "raise SystemExit(pytest.main(['--collect-only', '-q', *sys.argv[1:]], plugins=[Probe()]))\n"
)


def test_collecting_the_suite_registers_no_device() -> None:
    done = run("-c", _PROBE, str(ROOT / "tests"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "registered: privateuseone True" in done.stdout
