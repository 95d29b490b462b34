# Everything is in ./test.sh; these names are for fingers.
.PHONY: test lint fuzz soak test-kube
test:
	./test.sh
lint:
	./test.sh lint
fuzz:
	./test.sh fuzz
soak:
	./test.sh soak

# The store on a real kube-apiserver and etcd, built from their modules: many minutes the first time, half a minute after that.
kube := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/volumekit/kube
test-kube:
	mkdir -p $(kube)
	cd bridge/kube/apiserver && go build -o $(kube)/ go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver
	cd bridge/kube && KUBE_BINARIES=$(kube) go test -tags kubeapiserver -count=1 -timeout 10m -v -run '^TestAPIServer$$' .
