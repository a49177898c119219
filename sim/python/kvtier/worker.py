"""A worker process of a sweep. It reads a shard from standard input and writes its result lines."""

import os
import pickle
import sys


def main():
    # A policy's prints must not mix with the result.
    answer_to = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    path, shard = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    from kvtier import errors, sweeps

    try:
        answer = sweeps.run_shard(*shard)
    except errors.Error as error:
        answer = error
    except KeyboardInterrupt:
        sys.exit(130)
    with answer_to:
        pickle.dump(answer, answer_to)


if __name__ == "__main__":
    main()
