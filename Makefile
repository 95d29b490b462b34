# Everything is in ./test.sh; these names are for fingers.
.PHONY: test lint fuzz
test:
	./test.sh
lint:
	./test.sh lint
fuzz:
	./test.sh fuzz
