package storetest

import (
	"slices"
	"testing"

	"github.com/volumekit/volumekit/store"
)

// Config says which store is tested.
type Config struct {
	// New returns an empty store for one case. What it holds is released with t.Cleanup. Required.
	New func(t *testing.T) store.Store
	// Compact makes the store forget every version before its present one. Nil skips the cases that need it.
	Compact func(t *testing.T, s store.Store)
}

// testCase is one rule that a store must keep.
type testCase struct {
	name string
	run  func(t *testing.T, s store.Store)
}

// cases are all rules, but for compactedCase.
func cases() []testCase {
	return slices.Concat(writeCases(), deleteCases(), watchCases(), concurrencyCases(), transactionCases(), leaseCases())
}

// compactedCase is the rule that needs the store's help.
const compactedCase = "AWatchFromACompactedVersionSaysSo"

// Run holds the store of config to every rule of [store.Store].
func Run(t *testing.T, config Config) {
	t.Helper()
	if config.New == nil {
		t.Fatal("storetest: Config.New is nil: give a function that returns an empty store")
	}
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { c.run(t, config.New(t)) })
	}
	t.Run(compactedCase, func(t *testing.T) {
		if config.Compact == nil {
			t.Skip("Config.Compact is nil: the store cannot be made to forget versions")
		}
		testCompacted(t, config.New(t), config.Compact)
	})
}
