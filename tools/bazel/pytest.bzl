"""Tests that pytest runs."""

def pytest_test(name, srcs, data = [], **kwargs):
    """A py_test that runs the test files `srcs` under pytest.

    Args:
      name: of the target.
      srcs: test modules.
      data: other files the tests need.
      **kwargs: for py_test.
    """
    native.py_test(
        name = name,
        srcs = ["//tools/bazel:run_pytest.py"] + srcs,
        main = "//tools/bazel:run_pytest.py",
        args = ["$(location %s)" % src for src in srcs],
        data = ["//:pyproject.toml"] + data,
        deps = ["//placer", "//benchmarks", "//tests:samples"],
        python_version = "PY3",
        **kwargs
    )
