# Everything is in ./test.sh; these names are for fingers.
.PHONY: test lint fuzz soak
test:
	./test.sh
lint:
	./test.sh lint
fuzz:
	./test.sh fuzz
soak:
	./test.sh soak
