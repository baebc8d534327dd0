"""`python -m slipstream` and `torchrun -m slipstream` are the command line."""

from slipstream.cli.main import main

if __name__ == "__main__":
    main()
