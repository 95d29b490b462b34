package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// readManifests returns the objects in the files of dir whose names end in .json, .yaml or .yml. Any fault in any file
// is an error: the wanted objects are then unknown, and unknown is not absent.
func readManifests(dir string) ([]runtime.Object, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) {
			continue
		}
		read, err := readManifest(filepath.Join(dir, e.Name()))
		objects = append(objects, read...)
		errs = append(errs, err)
	}
	return objects, errors.Join(errs...)
}

func readManifest(name string) ([]runtime.Object, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	objects, err := store.Decode(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects, nil
}
