package nfs

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// export is what a spec asks for.
type export struct {
	server   string // a name, or an address without brackets
	path     string
	readOnly bool
}

// exportOf returns what spec asks for. The error matches volume.ErrInvalid.
func exportOf(spec *volume.Spec) (export, error) {
	var source *v1.NFSVolumeSource
	readOnly := false
	switch {
	case spec != nil && spec.Volume != nil && spec.Volume.NFS != nil:
		source, readOnly = spec.Volume.NFS, spec.Volume.NFS.ReadOnly
	case spec != nil && spec.Volume == nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil:
		source, readOnly = spec.PersistentVolume.Spec.NFS, spec.ReadOnly
	default:
		return export{}, fmt.Errorf("volume %q has no nfs source: it is not one of %s: %w", spec.Name(), Name, volume.ErrInvalid)
	}
	e := export{server: unbracket(source.Server), path: source.Path, readOnly: readOnly}
	if err := e.check(); err != nil {
		return export{}, fmt.Errorf("nfs volume %q: %w", spec.Name(), err)
	}
	return e, nil
}

// unbracket returns an IPv6 address without the brackets that it may have.
func unbracket(server string) string {
	if inner, ok := strings.CutPrefix(server, "["); ok && strings.HasSuffix(inner, "]") {
		return strings.TrimSuffix(inner, "]")
	}
	return server
}

func (e export) check() error {
	isControl := func(r rune) bool { return r < ' ' || r == 0x7f }
	switch {
	case e.server == "":
		return fmt.Errorf("server is empty: give a name or an address: %w", volume.ErrInvalid)
	case strings.ContainsFunc(e.server, func(r rune) bool { return isControl(r) || strings.ContainsRune(" /,[]", r) }):
		return fmt.Errorf("server %q is neither a name nor an address: %w", e.server, volume.ErrInvalid)
	case strings.Contains(e.server, ":") && !e.isIPv6():
		return fmt.Errorf("server %q is neither a name nor an address: give a port by the mount option port=: %w", e.server, volume.ErrInvalid)
	case !strings.HasPrefix(e.path, "/"):
		return fmt.Errorf("path %q does not begin with a slash: give the path that the server exports: %w", e.path, volume.ErrInvalid)
	case strings.ContainsFunc(e.path, isControl):
		return fmt.Errorf("path %q holds a control character: %w", e.path, volume.ErrInvalid)
	}
	return volume.ValidatePathNoBacksteps(e.path)
}

func (e export) isIPv6() bool {
	address, err := netip.ParseAddr(e.server)
	return err == nil && address.Is6()
}

// device is the export as the kernel and the mount table name it.
func (e export) device() string {
	if e.isIPv6() {
		return "[" + e.server + "]:" + e.path
	}
	return e.server + ":" + e.path
}

// exportOfDevice undoes device; false when it is no export.
func exportOfDevice(device string) (export, bool) {
	server, path, ok := strings.Cut(device, ":/")
	if !ok {
		return export{}, false
	}
	e := export{server: unbracket(server), path: "/" + path}
	return e, e.check() == nil
}
