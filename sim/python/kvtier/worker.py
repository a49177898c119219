"""A process of a sweep: reads which shard it does, writes the rows."""

import os
import pickle
import sys


def main():
    # Output of a policy must not mix with the rows.
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
