#!/usr/bin/env bash
# Measures this project beside Kubernetes' packages and prints, from one run, the table of goals.
#
#   ./run.sh                every group (about 25 minutes)
#   ./run.sh -w             the same, and puts the table into docs/benchmarks.md
#   ./run.sh 7a 7b          some groups: the table then has their rows only
#   COUNT=9 CALM=300 ./run.sh 5a
#
# COUNT (5) rounds are run, each measuring every implementation once, so that a ratio compares neighbours in time. Before
# each round it waits, CALM (60) seconds at most, for the machine to be less than a fifth busy. Trees, images and mount
# points lie in one directory below TMPDIR (/tmp), under 3 GB, until the end: TMPDIR is to be on a disk. OUT (./results) receives the raw output,
# the details of every benchmark and the table.
#
# It needs root. Everything happens in private mount namespaces, which take their mounts with them when they end.
set -euo pipefail
cd "$(dirname "$0")"
COUNT=${COUNT:-5} CALM=${CALM:-60} OUT=${OUT:-$PWD/results}
command_line="./run.sh${*:+ $*}"
all_groups='0 1 2 3 4a 4b 4c 4d 5a 5b 6a 6b 7a 7b 8 9 10a 10b 11 12'

die() { echo "run.sh: $*" >&2; exit 1; }

# name of a group, time or number of operations for each benchmark, benchmarks, program if it is not bench
group() {
	case $1 in
	0) agreement ;;
	1) bench 1-pending 300ms 'Pending' ;;
	2) bench 2-plugins 200ms 'FindPlugin' ;;
	3) bench 3-caches 200ms 'Cache' ;;
	4a) bench 4a-manager 3x 'ManagerMount|ManagerUnmount' ;;
	4b) bench 4b-idle 1x 'ManagerIdle' ;;
	4c) bench 4c-wait 1x 'ManagerWait' ;;
	4d) bench 4d-real 1x 'ManagerReal' ;;
	9) footprint ;;
	5a) bench 5a-du-warm 3x 'DiskUsageWarm' ;;
	5b) bench 5b-du-cold 1x 'DiskUsageCold' ;;
	6a) bench 6a-ownership 1x 'Ownership$' ;;
	6b) bench 6b-ownership-writes 1x 'OwnershipWrites' ;;
	7a) bench 7a-mount 200ms 'BindMount|Tmpfs' ;;
	7b) bench 7b-table 200ms 'MountTable' ;;
	8) bench 8-loop 200ms 'Loop' ;;
	10a) bench 10a-attach-idle 1x 'AttachIdle' ;;
	10b) bench 10b-attach-change 1x 'AttachChange' ;;
	11) bench 11-claims-bound 1x 'ClaimsBound' ;;
	12) bench 12-claim-on-etcd 1x 'Claim$' etcd ;;
	*) die "no group $1: there are $all_groups" ;;
	esac
}

agreement() { "$bin/bench.test" -test.v -test.run Agrees; }

# footprint prints what programs that embed a manager take: size, memory at the start, and the time of a start.
footprint() {
	local impl began i
	printf '| program | stripped binary | resident at the start | start |\n|---|---|---|---|\n'
	for impl in k8s ours; do
		go build -ldflags='-s -w' -o "$bin/footprint-$impl" "./footprint/$impl"
		began=$(date +%s%N)
		for ((i = 0; i < 50; i++)); do "$bin/footprint-$impl" >/dev/null; done
		printf '| %s | %s kB | %s kB | %s us |\n' "$impl" "$(($(stat -c %s "$bin/footprint-$impl") / 1000))" \
			"$("$bin/footprint-$impl" | sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p')" "$((($(date +%s%N) - began) / 50000))"
	done | tee "$OUT/9-footprint.md"
}

bench() { # name, time, benchmarks, program
	local file=$OUT/$1.txt i
	: >"$file.tmp"
	for ((i = 1; i <= COUNT; i++)); do
		calm
		{
			echo "# group $1 round $i, $(date -u +%FT%TZ), load $(cut -d' ' -f1-3 /proc/loadavg)"
			"$bin/${4:-bench}.test" -test.run '^$' -test.bench "$3" -test.benchmem -test.benchtime "$2" -test.timeout 30m
		} >>"$file.tmp" || { tail -20 "$file.tmp" >&2; die "group $1 failed"; }
	done
	mv "$file.tmp" "$file"
	measured+=("$file")
	"$bin/summary" "$file" | tee "${file%.txt}.md"
}

# calm waits until the machine is less than a fifth busy for two seconds.
calm() {
	local end=$((SECONDS + CALM)) a b
	while ((SECONDS < end)); do
		read -ra a </proc/stat; sleep 2; read -ra b </proc/stat
		((b[4] - a[4] > 160 * $(nproc))) && return
	done
	return 0
}

# head says what was measured where. The commit has a mark when files were changed since.
head_lines() {
	local commit changed memory
	memory=$(sed -n 's/^MemTotal:[^0-9]*\([0-9]*\).*/\1/p' /proc/meminfo)
	commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
	changed=$( (git status --porcelain -uno -- .. 2>/dev/null || true) | wc -l)
	((changed == 0)) || commit+=", with $changed files changed since"
	printf '| | |\n|---|---|\n'
	printf '| machine | %s, %s processors, %s GB of memory |\n' \
		"$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$((memory / 1000000))"
	printf '| kernel | %s |\n' "$(uname -sr)"
	printf '| Go | %s |\n' "$(go env GOVERSION)"
	printf '| Kubernetes | %s |\n' "$(go list -m -f '{{.Version}}' k8s.io/kubernetes)"
	printf '| commit | %s |\n' "$commit"
	printf '| date | %s |\n' "$(date -u +%FT%TZ)"
	printf '| command | `COUNT=%s CALM=%s %s` |\n' "$COUNT" "$CALM" "$command_line"
	printf '| load before | %s |\n\n' "$(cut -d' ' -f1-3 /proc/loadavg)"
}

# clean removes what a run that was interrupted may have left: loop devices outlive the process that made them.
clean() {
	local device
	for device in /sys/block/loop*/loop/backing_file; do
		if [[ $(cat "$device" 2>/dev/null) == "$bin"/* ]]; then
			device=${device#/sys/block/}
			losetup -d "/dev/${device%%/*}" || true
		fi
	done
	rm -rf --one-file-system "$bin"
}

write_page=
if [[ ${1:-} == -w ]]; then
	write_page=../docs/benchmarks.md
	shift
	(($# == 0)) || die "-w wants every group, since the page holds one run"
fi
[[ $(id -u) == 0 ]] || die "needs root, for mounts, loop devices and changes of owner"
bin=$(mktemp -d)
trap clean EXIT
trap 'exit 130' INT TERM
mkdir -p "$OUT" "$bin/data"
export BENCH_DIR=$bin/data VOLUMEKIT_MOUNTTEST_WRITABLE=$bin/data
go test -c -vet=off -o "$bin/bench.test" .
(cd ../bridge/etcd && go test -c -vet=off -o "$bin/etcd.test" .)
go build -o "$bin/summary" ./summary
head_lines >"$bin/head.md"
measured=()
for g in "${@:-$all_groups}"; do
	for h in $g; do group "$h"; done
done
((${#measured[@]} > 0)) || exit 0
printf '\n## Goals\n\n'
"$bin/summary" -goals -head "$bin/head.md" "${measured[@]}" | tee "$OUT/table.md"
if [[ -n $write_page ]]; then
	"$bin/summary" -goals -head "$bin/head.md" -into "$write_page" "${measured[@]}"
fi
