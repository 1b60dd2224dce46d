.PHONY: demo test check
demo: ; @scripts/run demo
test: ; @scripts/run test
check: ; @scripts/run check
