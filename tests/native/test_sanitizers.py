"""The simulator core under the address, undefined-behaviour and thread sanitizers."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "placer" / "native" / "simulator"


@pytest.mark.parametrize(("sanitizers", "graphs"), [("address,undefined", "200"), ("thread", "40")])
def test_core_runs_clean(sanitizers: str, graphs: str, tmp_path: Path) -> None:
    program = tmp_path / "simulator_test"
    # One translation unit without optimisation: the headers are most of the time it takes.
    sources = [path for path in sorted(CORE.glob("*.cc")) if path.name != "binding.cc"]
    sources.append(Path(__file__).with_name("simulator_test.cc"))
    whole = tmp_path / "whole.cc"
    whole.write_text("".join(f'#include "{path}"\n' for path in sources))
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [
            *compiler.split(),
            "-std=c++17",
            "-O0",
            "-g1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            f"-fsanitize={sanitizers}",
            "-fno-sanitize-recover=all",
            f"-I{CORE}",
            str(whole),
            "-o",
            str(program),
        ],
        check=True,
        timeout=300,
    )
    result = subprocess.run(
        [str(program), graphs], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(f"{graphs} graphs, ")
