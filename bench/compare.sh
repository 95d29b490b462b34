#!/usr/bin/env bash
# Compares the benchmarks of one package of the root module at a commit with those of this checkout, by benchstat. The runs of
# both alternate, so that what else the machine does falls on both.
#
#   bench/compare.sh BASE PACKAGE PATTERN COUNT
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 4 ] && [ -n "$1" ] || { echo "usage: bench/compare.sh BASE PACKAGE PATTERN COUNT" >&2; exit 2; }
base=$1 package=$2 pattern=$3 count=$4

repository=$PWD
dir=$(mktemp -d)
trap 'git -C "$repository" worktree remove --force "$dir/tree"; rm -r "$dir"' EXIT
git worktree add --quiet --detach "$dir/tree" "$base"
(cd "$dir/tree" && go test -c -o "$dir/base.test" "$package")
go test -c -o "$dir/here.test" "$package"
(cd tools && go build -o "$dir/benchstat" golang.org/x/perf/cmd/benchstat)

for ((run = 1; run <= count; run++)); do
  echo "run $run of $count" >&2
  (cd "$dir/tree/$package" && "$dir/base.test" -test.run '^$' -test.bench "$pattern" -test.benchmem) >>"$dir/base"
  (cd "$package" && "$dir/here.test" -test.run '^$' -test.bench "$pattern" -test.benchmem) >>"$dir/here"
done
cd "$dir" && ./benchstat base here
