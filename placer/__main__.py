"""`python -m placer`."""

from placer.cli.main import run

if __name__ == "__main__":
    run()
