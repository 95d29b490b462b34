package volumetest_test

import "testing"

// A test beside the example would keep it from being shown as a whole file.
func TestExamplePluginKeepsTheContract(t *testing.T) { testConformance(t) }
