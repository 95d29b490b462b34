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
// Each case is a subtest named after what it holds a store to, and gets a store of its own. The suite needs nothing but
// the interface, so that a store on another machine passes it as one in memory does; it waits for what must come and
// never for a time to pass.
package storetest
