package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

// proxy is a module proxy as a file tree (go help goproxy).
type proxy struct {
	dir     string
	tree    string // the checkout with the commit to offer
	version string
}

// add adds a module from the last commit, byte for byte as the go command makes it from the tag.
func (p proxy) add(m modules.Module) error {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.dir, escaped, "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	gomod, err := os.ReadFile(filepath.Join(p.tree, m.Dir, "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": p.version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"list": []byte(p.version + "\n"), p.version + ".info": info, p.version + ".mod": gomod} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(dir, p.version+".zip"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := zip.CreateFromVCS(file, module.Version{Path: m.Path, Version: p.version}, p.tree, "HEAD", m.Dir); err != nil {
		return err
	}
	return file.Close()
}
