#!/usr/bin/env bash
# Everything that CI runs, on a bare Debian machine with Go: installs what the tests need where it may, says what is
# missing where it may not, then formats, vets, lints, cross-compiles and tests with the race detector.
#
#   ./test.sh              all of it
#   ./test.sh lint         only the linters
#   ./test.sh api          only the comparison of what is exported with the last release
#   ./test.sh vulnerabilities   known vulnerabilities that the released modules call; not part of all of it, since it needs vuln.go.dev
#   ./test.sh simulation   only the simulation
#   ./test.sh load         only pods that come and go on real mounts, for VOLUMEKIT_LOAD (1m)
#   ./test.sh modules      only the modules of their own: the bridges, and the examples of a plugin and of a cluster
#   ./test.sh soak         ten minutes of load, ten of a cluster whose processes are killed, the agent of
#                          examples/orchestrator killed at every step and with every failed call, CSI drivers, their
#                          agents and a Docker driver likewise, 100 pods on containerd, the simulation for as long as it takes: a million
#                          seeds, schedules of depth 6; and each fuzz target for two minutes
#   ./test.sh guest        only the tests of NFS and of the device mapper, on a kernel that has them, in a guest; as root
#   ./test.sh fuzz         only the fuzz targets, each for FUZZTIME (20s; 5s as a part of all); fuzz PACKAGE... those of some packages
#   ./test.sh PACKAGE...   only the tests of those packages
#
# With CI=true a test that is skipped is a failure.
set -euo pipefail
cd "$(dirname "$0")"

# A program with the race detector would sleep for a second before it ends.
export GORACE="${GORACE:-} atexit_sleep_ms=0"

# Compilers and linkers collect garbage less often, which changes nothing of what they make. CI has nothing compiled before and
# no debugger, so it compiles without what only debuggers read; elsewhere this run shares what go build and go test compile.
GOFLAGS="${GOFLAGS:-} '-toolexec=env GOGC=400'"
[ "${CI:-}" != true ] || GOFLAGS+=" -gcflags=all=-dwarf=false"
export GOFLAGS

# A checkout may belong to another user, where git refuses to work. The user who runs this script trusts its content anyway.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0
GIT_CONFIG_VALUE_0=$(pwd -P)

# What tests write need outlive nothing, and on a disk they wait more than they compute. So root, with 12 GiB of memory
# free, gets a tmpfs as temporary directory: on /srv, a path as short as /tmp for the sockets below it, in a mount namespace
# that ends with this run. All else that is temporary lies in $scratch, on the disk: what an ordinary user's tests write, too,
# so that the disk is tested. Only the log of a failure outlives the run, in $disk.
disk=${TMPDIR:-/tmp}
memory=
in_memory() {
  if [ -n "${VOLUMEKIT_MEMORY:-}" ]; then
    mount -t tmpfs -o mode=1777 tmpfs /srv
    memory=/srv
    unset VOLUMEKIT_MEMORY
    return
  fi
  [ "$(id -u)" = 0 ] && [ "$(stat -f -c %T "$disk")" != tmpfs ] && [ -d /srv ] && [[ $PWD/ != /srv/* ]] || return 0
  [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -gt $((12 << 20)) ] || return 0
  unshare --mount --propagation private mount -t tmpfs tmpfs /srv 2>/dev/null || return 0
  VOLUMEKIT_MEMORY=1 exec unshare --mount --propagation private ./test.sh "$@"
}
in_memory "$@"

# The processes of job $1: those below it, and those with the mark of this run. A daemon of a test has left its parent, and
# an agent of a test has an environment of its own.
processes() {
  {
    grep -szlxF "VOLUMEKIT_RUN=$scratch" /proc/[0-9]*/environ || true
    grep -s '^PPid:' /proc/[0-9]*/status || true
  } | awk -F '[/:[:space:]]+' -v job="$1" '
    BEGIN { own[job] }
    $4 == "environ" { own[$3] }
    $4 == "status" { parent[$3] = $6 }
    END { for (one in parent) { for (p = one; p in parent && !(p in own); p = parent[p]); if (p in own) print one } }'
}

# However a run ends, by itself, by ^C, by a kill or by a hang-up: what it has started ends, too, and its temporary files go.
job=
end_run() {
  trap '' INT TERM HUP
  local left
  for _ in {1..100}; do
    left=$(processes "$job")
    kill -KILL ${job:+-- "-$job"} $left || true
    job=
    [ -n "$left" ] || break
    sleep 0.1
  done 2>/dev/null # bash says that the job was killed
  [ -z "$left" ] || echo "test.sh: these processes do not end:" $left >&2
  [ "$(id -u)" = 0 ] || chmod -R u+rwX "$scratch" # a test that is killed may have taken rights from its directories
  rm -rf --one-file-system "$scratch" "$guest"
}

# A run is a job, with a process group of its own: bash heeds a signal only while it waits.
as_job() {
  scratch=$(mktemp -d "$disk/vk-XXXXXX") # short, for the sockets below it
  # The guest has a /tmp of its own and gets this directory as /run/guest; it needs nothing of the checkout, wherever that
  # lies. Its name stands on a kernel's command line and has no blank.
  guest=$(mktemp -d /tmp/guest-XXXXXX)
  chmod 755 "$scratch" "$guest"
  export TMPDIR=${memory:-$scratch}
  trap end_run EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  set -m
  VOLUMEKIT_RUN=$scratch "$@" </dev/null &
  job=$!
  set +m
  wait "$job"
}

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }
fail() { printf 'test.sh: %s\n' "$*" >&2; exit 1; }

# Command to look for, and the Debian package that has it.
needs=(
  mkfs.ext4:e2fsprogs
  mkfs.xfs:xfsprogs
  mkfs.btrfs:btrfs-progs
  setpriv:util-linux
  unshare:util-linux
  gcc:gcc
  git:git
  linux.uml:user-mode-linux
  modprobe:kmod
  rpc.nfsd:nfs-kernel-server
  mount.nfs:nfs-common
  rpcbind:rpcbind
  busybox:busybox-static
  chromium-headless-shell:chromium-headless-shell
  dockerd:docker.io
  ctr:containerd # docker.io brings it, and runc, too
  runc:runc
)

missing_packages() {
  local need command
  for need in "${needs[@]}"; do
    command=${need%%:*}
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null 2>&1 || echo "${need#*:}"
  done | sort -u
  [ -e /usr/include/stdlib.h ] || echo libc6-dev
}

# Docker, containerd and NFS would begin to serve once they are installed; tests start their own.
without_services() {
  local policy=/usr/sbin/policy-rc.d status=0 ours=
  if [ ! -e "$policy" ]; then
    ours=$policy
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive "$@" || status=$?
  [ -z "$ours" ] || rm "$ours"
  return $status
}

install_packages() {
  local packages
  packages=$(missing_packages)
  [ -n "$packages" ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    step "install" $packages
    if DEBIAN_FRONTEND=noninteractive apt-get update -qq && without_services apt-get install -y -qq --no-install-recommends $packages >/dev/null; then
      return 0
    fi
  fi
  echo "test.sh: not installed:" $packages "(tests that need them are skipped and say so)"
  [ "${CI:-}" != true ] || fail "CI needs them"
}

check_go() {
  command -v go >/dev/null 2>&1 || fail "no go command: install Go 1.25 or newer"
  go list -m >/dev/null || fail "this Go is too old: go.mod asks for $(sed -n 's/^go //p' go.mod)"
}

# The race detector needs a C compiler.
race_flag() {
  if command -v "${CC:-gcc}" >/dev/null 2>&1 && [ -e /usr/include/stdlib.h ]; then
    echo -race
  else
    echo "test.sh: no C compiler: tests run without the race detector" >&2
  fi
}

check_format() {
  step "gofmt"
  local changed
  changed=$(git ls-files -z -- '*.go' 2>/dev/null | xargs -0 -r gofmt -l)
  [ -z "$changed" ] || fail "gofmt would change: $changed"
}

check_modules() {
  step "go mod tidy"
  go mod tidy -diff
}

# What a platform compiles of this module, without compiling it.
files_of() {
  GOOS=${1%/*} GOARCH=${1#*/} CGO_ENABLED=0 go list -f '{{.ImportPath}} {{.GoFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}' ./...
}

# Tests that need a guest, a driver or an API server have tags. .golangci.yml has the same list, and a test compares them.
tags=csidriver,dmguest,kubeapiserver,nfsguest,uml

# Of each other system one architecture is vetted; the second must consist of the same files.
# go vet would compile all that is imported once more for each platform, and no other step uses that: the command of tools/
# compiles nothing. It may need a newer Go than the library does. What is compiled here the linters have vetted, if they ran.
check_vet() {
  step "go vet, here and for the other platforms"
  [ -n "$linted" ] || go vet -tags "$tags" ./...
  local target others=(linux/arm64 darwin/arm64 windows/amd64)
  if (cd tools && go list -m >/dev/null 2>&1); then
    (cd tools && go run ./platforms -tags "$tags" "${others[@]}")
  else
    for target in "${others[@]}"; do
      echo "$target"
      GOOS=${target%/*} GOARCH=${target#*/} CGO_ENABLED=0 go vet -tags "$tags" -gcflags="all=-N -l" ./...
    done
  fi
  for target in darwin windows; do
    diff <(files_of $target/amd64) <(files_of $target/arm64) || fail "$target differs by architecture: vet both"
  done
}

# Modules of their own, as a user's are: what they need is no burden of the library.
modules=(examples/plugin bridge/csi bridge/etcd bridge/kube bridge/kube/snapshottest bridge/prometheus bridge/prometheus/rules bridge/otel bridge/inspect/browsertest controller/snapshot examples/cluster examples/csidriver examples/containerd tools)

# linted is set when the linters have run, go vet's among them.
linted=

# What was released and is gone breaks users' programs.
check_api() {
  step "the API of the last release"
  (cd tools && go run ./api)
}

check_lint() {
  step "golangci-lint"
  local linter=${XDG_CACHE_HOME:-$HOME/.cache}/volumekit/golangci-lint
  local wanted
  # The linters may need a newer Go than the library does.
  if ! wanted=$(cd tools && go list -m -f '{{.Version}}' github.com/golangci/golangci-lint/v2); then
    [ "${CI:-}" != true ] || fail "CI needs the linters"
    echo "test.sh: the linters need Go $(sed -n 's/^go //p' tools/go.mod): not run"
    return 0
  fi
  mkdir -p "$(dirname "$linter")"
  if ! go version -m "$linter" 2>/dev/null | grep -q "golangci-lint/v2[[:space:]]$wanted"; then
    # Installed by its module path, so that the binary says which version it is.
    (cd tools && GOGC=400 go build -ldflags='-s -w' -o "$linter" github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
  fi
  local module
  for module in . "${modules[@]}"; do
    (cd "$module" && GOGC=400 GOMEMLIMIT=4GiB "$linter" run ./...) # a quarter less time, for more memory
  done
  linted=1
}

# The database changes while the code does not, so this fails no ordinary run.
check_vulnerabilities() {
  step "known vulnerabilities"
  local scanner module out status=0
  scanner=$scratch/govulncheck
  (cd tools && go build -o "$scanner" golang.org/x/vuln/cmd/govulncheck)
  for module in . "${modules[@]}"; do
    ! grep -q '^module .*// not released' "$module/go.mod" || continue
    echo "$module"
    if ! out=$(cd "$module" && "$scanner" ./... 2>&1); then
      status=1
      echo "$out"
      ! grep -qE 'vuln\.go\.dev|fetching vulnerabilities' <<<"$out" || grep -q '^Vulnerability #' <<<"$out" ||
        fail "the database of vulnerabilities, https://vuln.go.dev, cannot be reached: nothing is known"
    fi
  done
  [ $status = 0 ] || fail "vulnerabilities are called"
}

# A test that is skipped for want of something says so in these words (skips_test.go holds that); the conformance suites
# also skip what a plugin does not claim to do. In CI nothing may be missing. What a test prints of a run of its own is
# indented further.
forbid_skips() {
  [ "${CI:-}" = true ] || return 0
  ! grep -E '^    [A-Za-z0-9_]+\.go:[0-9]+: missing: ' "$1" || fail "CI has all that tests need; the ones above were skipped"
}

# Of a package that passed only its line is shown, and what was skipped; of one that failed all that it printed but the
# tests that passed. What failed comes once more at the end, with the first lines that each test itself printed, since a log
# is read from there. Lines that belong to no test, as of a check after all tests or of the compiler, are those of the package.
show_tests() {
  awk '
    function note(line) { if (lines[test]++ < 60) own[test] = own[test] line "\n" }
    function forget() { split("", own); split("", lines); test = held = missing = "" }
    /^(ok|\?)[[:space:]]/ { printf "%s", missing; print; forget(); next }
    /^FAIL[[:space:]]/ { printf "%s", held; print; failed = failed own[""] $0 "\n"; forget(); next }
    /^=== / { test = $3; next }
    /^[[:space:]]*--- PASS/ { delete own[$3]; if (/^---/) test = ""; next }
    /^(PASS|FAIL)$/ { test = ""; next }
    { held = held $0 "\n" }
    /^    [A-Za-z0-9_]+\.go:[0-9]+: missing: / { missing = missing $0 "\n" }
    /^--- FAIL|^[[:space:]]+--- FAIL: [^ ]*\// { failed = failed $0 "\n" own[$3]; delete own[$3]; if (/^---/) test = ""; next }
    /^panic: / { test = "" }
    { note($0) }
    END { printf "%s", held; if (failed != "") printf "\nfailed:\n%s", failed }
  ' "$1"
}

run_tests() {
  step "go test $*"
  local log status=0
  log=$(mktemp "$scratch/tests-XXXXXX")
  go test -v -vet=off -timeout 8m "$@" >"$log" 2>&1 || status=$?
  show_tests "$log"
  [ $status = 0 ] || { mv "$log" "$disk"; fail "tests failed; everything they printed is in $disk/${log##*/}"; }
  forbid_skips "$log"
  rm -f "$log"
}

# The same tests as an ordinary user: what needs no root must not need it. The tests are built as who we are, where the
# steps before have built them, and run in a copy of the sources that this user can read. The root package and
# TestBuiltBinary call the go command, which has no cache there.
# What asks the system for nothing is the same for every user.
anybodys='/volumemanager/internal/simulationtest|/internal/(abandonable|backoff|cluster|crashstore|keyed|ordered|outcome|simulation|watchdog|workqueue)|/volumemanager/internal/(changes|keylock|populator)|/operationexecutor|/cache|/controller/.*'

run_tests_as_user() {
  [ "$(id -u)" = 0 ] || return 0
  step "go test as an ordinary user"
  local copy=$scratch/user status=0
  mkdir "$copy"
  git ls-files -z | tar --null -T - -cf - | tar -C "$copy" -xf -
  mkdir -m 1777 "$copy/.tmp"
  cat >"$copy/.run" <<EOF
#!/bin/sh
chmod a+x "\${1%/*/*}" # go test's own directory, since tests start their binary again
cd "$copy\${PWD#"$PWD"}" && exec env -u CI TMPDIR="$copy/.tmp" setpriv --reuid=65534 --regid=65534 --clear-groups "\$@"
EOF
  chmod -R a+rX "$copy"
  chmod +x "$copy/.run"
  go list ./... | grep -vE "^github.com/volumekit/volumekit($anybodys)?\$" |
    xargs go test -vet=off -timeout 6m -skip '^TestBuiltBinary$' -exec "'$copy/.run'" || status=$?
  [ $status = 0 ] || fail "tests failed as an ordinary user"
}

# The machine's kernel may have no NFS; a User-mode Linux guest has it, and is an older one, on which the mount layer is tested
# too. Its root is the machine's, read-only; what its tests write is in its memory. What it runs is built before, since two
# builds side by side would compile the same.
build_guest() {
  if [ "$(id -u)" != 0 ] || ! command -v linux.uml >/dev/null 2>&1; then
    [ "${CI:-}" != true ] || fail "CI needs root and user-mode-linux for the guest"
    echo "test.sh: missing: root and user-mode-linux: the tests of NFS are not run"
    return 0
  fi
  step "build for the guest"
  cp internal/guest/init.sh "$guest/init"
  chmod 755 "$guest/init"
  go test -c -vet=off -tags nfsguest -o "$guest/nfs.test" ./plugins/nfs
  go test -c -vet=off -o "$guest/mount.test" ./mount
  go test -c -vet=off -o "$guest/volumetest.test" ./volume/volumetest
  go test -c -vet=off -tags dmguest -o "$guest/dm.test" ./volumemanager
  (cd bridge/csi && go test -c -vet=off -tags nfsguest -o "$guest/csi.test" ./csiserver)
  if grep -qw amx_tile /proc/cpuinfo; then
    gcc -shared -fPIC -O1 -o "$guest/xstate.so" internal/guest/xstate.c
  fi
}

run_guest() {
  [ -e "$guest/init" ] || return 0
  step "tests of NFS, of the device mapper and of mounts on an older kernel, in a guest"
  local preload= status=0
  # The guest's kernel gives back less of a processor's state than one with AMX has, which ptrace(2) refuses.
  [ ! -e "$guest/xstate.so" ] || preload=$guest/xstate.so
  {
    echo "/run/guest/nfs.test -test.timeout 25m"
    echo "/run/guest/mount.test -test.timeout 5m -test.run '^TestSuite$'"
    echo "/run/guest/volumetest.test -test.timeout 12m -test.run OverTheKernel"
    echo "/run/guest/csi.test -test.timeout 5m -test.run '^TestSanityOfNFS\$'"
    echo "/run/guest/dm.test -test.timeout 5m -test.run '^(TestDeviceThatFails|TestSuspendedDevice|TestSlowDevice)'"
  } >"$guest/run"
  LD_PRELOAD=$preload timeout -k 5 45m linux.uml mem=512M rootfstype=hostfs rootflags=/ ro init="$guest/init" \
    VOLUMEKIT_GUEST="$guest" CI="${CI:-}" con=null con0=fd:0,fd:1 quiet </dev/null >"$guest/log" 2>&1 || status=$?
  grep -q '^guest: passed' "$guest/log" || { cat "$guest/log"; status=1; }
  [ $status = 0 ] || fail "tests failed in the guest"
}

# What waits more than it computes runs beside the other steps; what it printed is shown when all of it has ended.
besides=()
beside() {
  local log
  log=$(mktemp "$scratch/beside-XXXXXX")
  "$@" >"$log" 2>&1 &
  besides+=("$! $log")
}

await_besides() {
  local one status=0
  for one in "${besides[@]}"; do
    wait "${one%% *}" || status=$?
    cat "${one#* }"
  done
  besides=()
  [ $status = 0 ] || fail "what ran beside the other steps failed"
}

# Every fuzz target of the packages, as package, directory and target with tabs between them, since a directory may have a
# blank: a new one is found here and nowhere listed.
fuzz_targets() {
  go list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Dir}}{{"\t"}}{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Dir}}{{"\t"}}{{.}}
{{end}}' "$@" | while IFS=$'\t' read -r package dir file; do
    [ -z "$file" ] || sed -nE "s|^func (Fuzz[A-Za-z0-9_]*)\(.*|$package\t$dir\t\1|p" "$dir/$file"
  done
}

# Until Go 1.27 the end of the time may be told as a failure (go.dev/issue/75804). What a target has found is told in
# more words, and most of it is a file. An input that hangs is found after ten seconds.
fuzz_one() {
  local cache binary package dir target log status=0 ran
  IFS=$'\t' read -r cache binary package dir target <<<"$1"
  log=$(mktemp)
  (cd "$dir" && exec "$binary" -test.paniconexit0 -test.run='^$' -test.fuzz="^$target\$" -test.fuzzcachedir="$cache/fuzz/$package" \
    -test.fuzztime="$FUZZTIME" -test.fuzzminimizetime=5s -test.parallel=1) >"$log" 2>&1 || status=$?
  ran=$(grep -o 'execs: [0-9]*' "$log" | tail -n 1) || true
  sed -i '/^fuzz: elapsed/d' "$log"
  if grep -q '^    context deadline exceeded$' "$log" && ! grep -qvE '^(--- FAIL: Fuzz.*|    context deadline exceeded|FAIL|)$' "$log"; then
    status=0
  fi
  if [ $status = 0 ]; then
    echo "ok    $target, ${ran:-execs: none} (${dir#"$PWD/"})"
  else
    tail -n 40 "$log"
    sed -nE "s|^ *Failing input written to (.*)|test.sh: $target fails on ${dir#"$PWD/"}/\1: commit it with the repair|p" "$log"
    echo "FAIL  $target (${dir#"$PWD/"})"
  fi
  rm -f "$log"
  return $status
}

# What -fuzz= does to a package, its coverage guiding the fuzzer, is done to ours alone: so of what they import nothing is
# compiled once more. The packages are built one after the other, each once for all its targets: side by side each would
# compile the same. Then three for each processor run side by side.
run_fuzz() {
  export FUZZTIME=${FUZZTIME:-20s}
  step "build for fuzzing"
  local targets binaries=$scratch/fuzz cache status=0
  targets=$(fuzz_targets "$@" | sort)
  [ -n "$targets" ] || fail "no fuzz target in $*"
  cache=$(go env GOCACHE)
  mkdir "$binaries"
  targets=$(while IFS=$'\t' read -r package dir target; do
    binary=$binaries/${package//\//-}
    [ -e "$binary" ] || go test -c -vet=off -gcflags='github.com/volumekit/volumekit/...=-d=libfuzzer -dwarf=false' -o "$binary" "$package" </dev/null >&2 || exit
    printf '%s\t' "$cache" "$binary" "$package" "$dir" && echo "$target"
  done <<<"$targets") || fail "building for fuzzing failed"
  step "fuzz, each of $(wc -l <<<"$targets") targets for $FUZZTIME"
  export -f fuzz_one
  xargs -P "$((3 * $(nproc)))" -d '\n' -n 1 bash -c 'set -uo pipefail; fuzz_one "$1"' fuzz <<<"$targets" || status=$?
  [ $status = 0 ] || fail "fuzz targets failed"
}

# The tests run a part of the simulation with the race detector; this is more of it without.
run_simulation() {
  export SIMULATION_SEEDS=${SIMULATION_SEEDS:-$1} SIMULATION_DEPTH=${SIMULATION_DEPTH:-$2} CLUSTER_SEEDS=${CLUSTER_SEEDS:-$3}
  step "simulation: $SIMULATION_SEEDS seeds, every schedule of depth $SIMULATION_DEPTH, $CLUSTER_SEEDS clusters"
  GOGC=400 go test -count=1 -timeout "$4" -v -run '^(TestSeeds|TestEverySchedule|TestSimulatedManager|TestTheSameSeedGivesTheSameTrace)$' ./volumemanager/internal/simulationtest ./volumemanager |
    grep -vE '^=== |^PASS$|^ +--- PASS'
  go test -count=1 -timeout "$4" -v -run '^(TestTheSimulationFindsBugs|TestClustersStayWhole)$' ./controller/attachdetach |
    grep -vE '^=== |^PASS$|^ +--- PASS'
  CLUSTER_SEEDS=$((CLUSTER_SEEDS / 5)) go test -count=1 -timeout "$4" -v -run '^(TestTheSimulationFindsBugsOfPlacedPods|TestScheduledClustersStayWhole)$' \
    ./controller/attachdetach | grep -vE '^=== |^PASS$|^ +--- PASS'
  (cd controller/snapshot && SNAPSHOT_SEEDS=$((CLUSTER_SEEDS / 5)) go test -count=1 -timeout "$4" -v -run '^TestSnapshotsStayWhole$' . |
    grep -vE '^=== |^PASS$')
  (cd bridge/csi && go test -count=1 -timeout "$4" -v -run '^TestSimulatedDriver$' ./csidriver | grep -vE '^=== |^PASS$')
}

# The tests run a few seconds of it with the race detector; this is more of it without. To fill the node and to empty it again
# comes on top of the time.
run_load() {
  export VOLUMEKIT_LOAD=${VOLUMEKIT_LOAD:-$1}
  step "load: pods on real mounts for $VOLUMEKIT_LOAD"
  run_tests -count=1 -timeout "$2" -run '^(TestLoad|TestAnIdleNodeDoesNothing)$' ./volumemanager
}

# The tests kill the agent once at each point, and let some of its calls fail; this is both goals and every error.
run_faults() {
  step "every crash and every failed call of examples/orchestrator"
  ORCHESTRATOR_ALL=1 go test -count=1 -timeout 0 -v ./examples/orchestrator | grep -vE '^=== |^PASS$'
}

# The tests kill the driver, the agent and both at some calls; this is at each.
run_csi_kills() {
  step "CSI: every crash of a driver, of an agent, and of both"
  (cd bridge/csi && CSI_KILL_ALL=1 go test -count=1 -timeout 0 -v -run '^TestNothingIsLostOverTheSocket$' . | grep -vE '^=== |^PASS$')
  (cd examples/csidriver && CSIDRIVER_ALL=1 go test -count=1 -timeout 0 -v . | grep -vE '^=== |^PASS$')
}

# The tests kill the driver, and the program of one, at some calls, and have Docker go through a few cycles; this is each call, and a thousand.
run_docker() {
  step "Docker: every crash of a driver, and a thousand volumes"
  DOCKERDRIVER_ALL=1 go test -count=1 -timeout 0 -v ./examples/dockerdriver ./bridge/docker/dockerdriver | grep -vE '^=== |^PASS$'
}

# The tests start a few pods at once; this is a hundred.
run_containerd() {
  step "containerd: a hundred pods at once"
  (cd examples/containerd && CONTAINERD_ALL=1 go test -count=1 -timeout 0 -v . | grep -vE '^=== |^PASS$')
}

# The tests do a tenth of it.
run_cycles() {
  step "the quickstart's pod, set up and torn down a thousand times"
  VOLUMEKIT_CYCLES=1000 run_tests -count=1 -run '^TestManyCyclesLeaveNothing$' ./examples/quickstart
}

run_quickstart() {
  step "go run ./examples/quickstart"
  go run ./examples/quickstart
}

# For the cluster CLUSTER_CHURN says how long its processes are killed at random.
run_modules() {
  export CLUSTER_CHURN=${CLUSTER_CHURN:-$1}
  local module
  for module in "${modules[@]}"; do
    step "go test, in $module"
    [ -n "$linted" ] || (cd "$module" && go vet -tags "$tags" ./...)
    (cd "$module" && run_tests -count=1 -timeout "$2" ./...)
  done
}

main() {
  case "${1:-all}" in
  all)
    check_format
    check_modules
    build_guest
    beside run_guest
    check_lint
    check_vet
    check_api
    run_tests $(race_flag) -shuffle=on ./...
    beside run_load 40s 5m
    beside run_cycles
    run_simulation 10000 4 300 10m
    beside run_modules 1m 6m
    run_tests_as_user
    await_besides
    FUZZTIME=${FUZZTIME:-5s} run_fuzz ./...
    run_quickstart
    step "all passed"
    ;;
  lint) check_lint ;;
  api) check_api ;;
  vulnerabilities) check_vulnerabilities ;;
  simulation) run_simulation 20000 4 300 10m ;;
  load) run_load 1m 5m ;;
  soak)
    run_load 10m 0
    run_modules 10m 20m
    run_faults
    run_csi_kills
    run_docker
    run_containerd
    run_simulation 1000000 6 10000 0
    FUZZTIME=${FUZZTIME:-2m} run_fuzz ./...
    ;;
  guest) build_guest; run_guest ;;
  modules) run_modules 1m 6m ;;
  fuzz) shift && run_fuzz "${@:-./...}" ;;
  *) run_tests $(race_flag) "$@" ;;
  esac
}

check_go
install_packages
as_job main "$@"
