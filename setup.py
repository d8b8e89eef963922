"""Builds Placer: compiles protos/ to Python and placer/native/ to extension modules."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NATIVE = "placer/native"
PLUGIN = "libplacer_plugin"
COMPILE_FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-pthread", "-Wall"]


def compile_protos(target: Path) -> None:
    """Compiles protos/*.proto to target/placer/protos/*_pb2.py, which git ignores, with stubs."""
    from grpc_tools import protoc

    package = target / "placer" / "protos"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text('"""File formats, compiled from protos/."""\n')
    protos = sorted((ROOT / "protos").glob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path=placer/protos={ROOT / 'protos'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        *(f"placer/protos/{proto.name}" for proto in protos),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("setup.py: protoc refused protos/*.proto; see its message above.")


class BuildNative(build_ext):
    """build_ext that says what is missing where there is no C++ compiler."""

    def run(self) -> None:
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            raise SystemExit(
                "setup.py: Placer's simulator and plugin are C++17 and no compiler was found "
                "(c++, g++, clang++). Install one, e.g. apt-get install g++, and try again."
            )
        super().run()

    def build_extensions(self) -> None:
        # The plain C++ driver: distutils' default names the C compiler for .cc files.
        for command in ("compiler_so", "compiler_so_cxx"):
            flags = getattr(self.compiler, command, None)
            if flags and "-Wstrict-prototypes" in flags:
                flags.remove("-Wstrict-prototypes")
        super().build_extensions()

    def get_ext_filename(self, ext_name: str) -> str:
        # TensorFlow loads the plugin, not Python: a plain name, without the interpreter's tag.
        if ext_name.rpartition(".")[2] == PLUGIN:
            return str(Path(*ext_name.split("."))) + ".so"
        return super().get_ext_filename(ext_name)


def tensorflow_include() -> str:
    """The folder of TensorFlow's C headers, found without importing TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "setup.py: the plugin needs TensorFlow's headers; pip install tensorflow and try again."
        )
    return str(Path(spec.submodule_search_locations[0]) / "include")


def native_extensions() -> list[Extension]:
    import pybind11

    return [
        Extension(
            "placer.simulator._native",
            sources=sorted(
                str(p.relative_to(ROOT)) for p in (ROOT / NATIVE / "simulator").glob("*.cc")
            ),
            depends=sorted(
                str(p.relative_to(ROOT)) for p in (ROOT / NATIVE / "simulator").glob("*.h")
            ),
            include_dirs=[pybind11.get_include()],
            language="c++",
            # No fused multiply-add: every machine gives the same bits.
            extra_compile_args=[*COMPILE_FLAGS, "-ffp-contract=off"],
            extra_link_args=["-pthread"],
        ),
        # Nothing of TensorFlow is linked: see placer/native/plugin/tensorflow_api.h.
        Extension(
            f"placer.plugin.{PLUGIN}",
            sources=sorted(
                str(p.relative_to(ROOT)) for p in (ROOT / NATIVE / "plugin").glob("*.cc")
            ),
            depends=sorted(
                str(p.relative_to(ROOT)) for p in (ROOT / NATIVE / "plugin").glob("*.h")
            ),
            include_dirs=[str(ROOT), tensorflow_include()],
            language="c++",
            # Without debug symbols: `placer plugin install` copies it.
            extra_compile_args=[*COMPILE_FLAGS, "-g0"],
            extra_link_args=["-pthread", "-ldl"],
        ),
        # Preloaded into workers, never imported: see placer/runtime/worker.py.
        Extension(
            "placer.runtime._loopback",
            sources=[f"{NATIVE}/loopback/bind.c"],
            extra_compile_args=["-O2", "-Wall"],
            extra_link_args=["-ldl"],
        ),
    ]


# Before setup(), which asks for every package's folder.
compile_protos(ROOT)

setup(
    name="placer",
    version="0.1.0",
    description="Decides which device every operation of a TensorFlow graph should run on",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    packages=[*find_packages(include=["placer", "placer.*"]), "placer.protos"],
    package_data={"placer": ["py.typed"], "placer.protos": ["*.pyi"]},
    install_requires=[
        "tensorflow==2.21.*",
        "numpy>=1.26",
        "absl-py>=2.1",
        "protobuf>=7.35.1,<8",
        "pandas>=2.2",
        "scipy>=1.11",
        "rich>=13",
    ],
    extras_require={
        "partition": ["pymetis", "scotchpy64"],
        "plots": ["matplotlib>=3.8"],
        "test": ["pytest>=8", "pytest-xdist", "hypothesis>=6.100", "ruff>=0.8", "mypy>=1.13"],
    },
    entry_points={"console_scripts": ["placer=placer.cli.main:run"]},
    ext_modules=native_extensions(),
    cmdclass={"build_ext": BuildNative},
    zip_safe=False,
)
