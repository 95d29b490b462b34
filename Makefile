# Everything is in ./test.sh; these names are for fingers.
.PHONY: test lint fuzz soak test-kube test-csi release vulnerabilities benchcompare
test:
	./test.sh
lint:
	./test.sh lint
fuzz:
	./test.sh fuzz
soak:
	./test.sh soak
vulnerabilities:
	./test.sh vulnerabilities

# All of a release but to publish it, see docs/releases.md.
release:
	./test.sh
	cd tools && go run ./release '$(VERSION)'

# Benchmarks of a package, before and after: BASE is a commit, PKG a package of the root module, BENCH a pattern, COUNT how many runs of each.
benchcompare:
	./bench/compare.sh '$(BASE)' '$(or $(PKG),./volumemanager)' '$(or $(BENCH),.)' '$(or $(COUNT),6)'

# The store on a real kube-apiserver and etcd, snapshots with their CRDs, and the manifests of examples/csidriver, built from their modules:
# many minutes the first time, a minute after that.
kube := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/volumekit/kube
test-kube:
	mkdir -p $(kube)
	cd bridge/kube/apiserver && go build -o $(kube)/ go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver
	cd bridge/kube && KUBE_BINARIES=$(kube) go test -tags kubeapiserver -count=1 -timeout 10m -v -run '^TestAPIServer$$' .
	cd bridge/kube/snapshottest && KUBE_BINARIES=$(kube) go test -tags kubeapiserver -count=1 -timeout 10m -v -run '^TestAPIServer' .

# Any CSI driver as a plugin, see docs/csi.md: DRIVER is its program, or the socket of one that runs. In ARGS {socket}, {dir} and {node} stand
# for what it is to use. BROKEN has the rules of docs/contract.md that it is known to break.
test-csi:
	cd bridge/csi && CSI_DRIVER='$(abspath $(DRIVER))' CSI_DRIVER_ARGS='$(ARGS)' CSI_DRIVER_BROKEN='$(BROKEN)' \
		go test -tags csidriver -count=1 -timeout 10m -v -run '^TestAnyDriver' .
