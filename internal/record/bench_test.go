package record

import (
	"strconv"
	"testing"
)

// BenchmarkPut measures the write of an intent.
func BenchmarkPut(b *testing.B) {
	d, payload := benchDir(b, 0), make([]byte, 600)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := d.Put("example.com/plugin/"+strconv.Itoa(i%8000), payload); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoad measures a start with many records.
func BenchmarkLoad(b *testing.B) {
	d := benchDir(b, 8000)
	for b.Loop() {
		if got, _, err := d.Load(); err != nil || len(got) != 8000 {
			b.Fatal(len(got), err)
		}
	}
}

func benchDir(b *testing.B, records int) *Dir {
	b.Helper()
	d, err := Open(b.TempDir()+"/records", Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.Close() })
	for i := range records {
		if err := d.Put("example.com/plugin/"+strconv.Itoa(i), make([]byte, 600)); err != nil {
			b.Fatal(err)
		}
	}
	return d
}
