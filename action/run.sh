#!/usr/bin/env bash
# Run $RUN; after $TIMEOUT seconds, save a snapshot of the cluster here in $DIRECTORY, print its report and end $RUN.
# Tests of pytest that hang are inspected by dstack's plugin after $TEST_TIMEOUT seconds.
set -uo pipefail

mkdir -p "$DIRECTORY"
DIRECTORY=$(cd "$DIRECTORY" && pwd)
export PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} --dstack-timeout=$TEST_TIMEOUT --dstack-dir='$DIRECTORY'"

setsid bash -eo pipefail -c "$RUN" &
command=$!
trap 'kill -TERM -- "-$command" 2>/dev/null' INT TERM
end=$((SECONDS + TIMEOUT))
while kill -0 "$command" 2>/dev/null; do
    if ((SECONDS >= end)); then
        echo "::error title=dstack::The command has not ended within $TIMEOUT s; the report follows."
        dstack snapshot -o "$DIRECTORY/command.json.gz" --force &&
            dstack report "$DIRECTORY/command.json.gz" -o "$DIRECTORY/command.html" --force
        kill -TERM -- "-$command"
        sleep 2
        kill -KILL -- "-$command" 2>/dev/null
        exit 124
    fi
    sleep 0.2
done
wait "$command"
