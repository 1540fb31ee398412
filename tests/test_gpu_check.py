"""The script for the first person with a GPU, on what there is here."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.long
def test_all_agrees_on_the_cpu() -> None:
    command = [sys.executable, SCRIPT, "--device", "cpu", "--encodings", "rope,shaw"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout and done.stdout.rstrip().endswith("all agree")
    for line in (
        "shaw                     bidirectional",
        "training step: time, as a ratio to nope",
        "nope, 128 tokens",
    ):
        assert line in done.stdout


@pytest.fixture
def main(script: dict, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The script without what starts processes or runs."""

    def call(*arguments: str, **replaced: Callable) -> int:
        for name in ("runs", "together", "profile"):
            monkeypatch.setitem(script["main"].__globals__, name, replaced.get(name, lambda *given: None))
        monkeypatch.setattr(sys, "argv", ["gpu_check.py", *arguments])
        return script["main"]()

    return call


def test_the_verdict(main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    of_rope = ["--device=cpu", "--encodings=rope"]
    assert main(*of_rope) == 0
    assert capsys.readouterr().out.rstrip().endswith("all agree")
    assert main(*of_rope, "--tolerance=1e-12") == 1
    out = capsys.readouterr().out
    assert "WRONG  rope, causal: logits in training: differs by " in out and "checks fail" in out.splitlines()[-1]

    def fails(*given: object) -> None:
        raise OSError("no such device")

    assert main(*of_rope, together=fails) == 1
    assert "WRONG  runs at once: OSError: no such device" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert "There is no GPU" in capsys.readouterr().out


def test_whole_runs_agree(script: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = script["Findings"](2e-5)
    script["runs"]("t5", tmp_path, "cpu", findings)
    assert findings.checks == 3 and not findings.problems
    script["Findings"].compare(findings, "other", torch.ones(2), torch.ones(2) * 1.1)
    assert len(findings.problems) == 1


@pytest.mark.parametrize("causal", [True, False])
def test_a_device_that_computes_something_else_is_found_out(
    script: dict, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the size of a rounding in half precision, in one place alone."""
    from rpe_bench.encodings.rope import RoPE

    findings = script["Findings"](2e-5)
    worst = script["equality"]("rope", causal, torch.device("cpu"), findings)
    assert not findings.problems and findings.checks > 20 and max(worst) < 2e-5
    plain = RoPE.rotate

    def rounded(self, q, k, positions=None, context=None):
        q, k = plain(self, q, k, positions, context)
        return (q, k) if q.dtype == torch.float64 else (q.bfloat16().to(q.dtype), k)

    monkeypatch.setattr(RoPE, "rotate", rounded)
    script["equality"]("rope", causal, torch.device("cpu"), findings)
    found = "\n".join(findings.problems)
    for what in (
        "logits in training",
        "logits in evaluation",
        "logits of attention",
        "gradient of",
        "attention of layer 1",
    ):
        assert what in found


def test_what_is_not_finite_or_fails_is_a_problem(script: dict) -> None:
    findings = script["Findings"](2e-5)
    one = torch.tensor([1.0, -float("inf"), 0.0])
    assert findings.compare("same", one, one.double()) == 0 and not findings.problems
    findings.compare("other", torch.tensor([1.0, 0.0, 0.0]), one)
    findings.compare("nan", torch.tensor([float("nan"), -float("inf"), 0.0]), one)
    findings.compare("far", torch.tensor([1.01, -float("inf"), 0.0]), one)
    findings.attempt("fails", lambda: torch.ones(2) @ torch.ones(3))
    assert [problem.partition(":")[0] for problem in findings.problems] == ["other", "nan", "far", "fails"]
    assert findings.checks == 5
