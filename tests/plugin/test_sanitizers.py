"""The pass under the address and undefined-behaviour sanitizers, on damaged graphs too."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "placer" / "native" / "plugin"
# These two talk to TensorFlow; the rest needs none of it.
WITH_TENSORFLOW = {"plugin.cc", "tensorflow_api.cc"}


def test_the_pass_runs_clean_on_whole_and_damaged_graphs(tmp_path: Path) -> None:
    program = tmp_path / "plugin_test"
    sources = [path for path in sorted(NATIVE.glob("*.cc")) if path.name not in WITH_TENSORFLOW]
    sources.append(ROOT / "tests" / "native" / "plugin_test.cc")
    subprocess.run(
        [
            *os.environ.get("CXX", "c++").split(),
            *("-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
            f"-I{ROOT}",
            *map(str, sources),
            "-o",
            str(program),
        ],
        check=True,
        timeout=300,
    )
    done = subprocess.run([str(program), "300"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "passed"
