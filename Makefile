# Everything is in ./test.sh; these names are for fingers.
.PHONY: test lint
test:
	./test.sh
lint:
	./test.sh lint
