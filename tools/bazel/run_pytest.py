"""Runs the test files it is given; Bazel's entry point for pytest."""

import os
import sys

import pytest

if __name__ == "__main__":
    # Programs that the tests start find the packages too.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *sys.path])
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
