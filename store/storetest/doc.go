// Package storetest is the suite that every [store.Store] passes.
//
// A store's test calls [Run] once:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			New: func(t *testing.T) store.Store { return store.NewMemory(store.MemoryOptions{}) },
//		})
//	}
//
// Each case is a subtest named after its requirement, with a store of its own. The suite uses only the interface, so a
// store on another machine can pass it as one in memory does. It waits for what must come, and never for time to pass.
package storetest
