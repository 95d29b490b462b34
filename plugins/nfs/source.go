package nfs

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// export is the export that a spec names.
type export struct {
	server   string // a name, or an address without brackets
	path     string
	readOnly bool
}

// exportOf returns the export that spec names. The error matches volume.ErrInvalid.
func exportOf(spec *volume.Spec) (export, error) {
	var source *v1.NFSVolumeSource
	readOnly := false
	switch {
	case spec != nil && spec.Volume != nil && spec.Volume.NFS != nil:
		source, readOnly = spec.Volume.NFS, spec.Volume.NFS.ReadOnly
	case spec != nil && spec.Volume == nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil:
		source = spec.PersistentVolume.Spec.NFS
		readOnly = source.ReadOnly || spec.ReadOnly
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
	server, path := volume.Quote(e.server), volume.Quote(e.path)
	switch {
	case e.server == "":
		return fmt.Errorf("server is empty: give a name or an address: %w", volume.ErrInvalid)
	case strings.Contains(e.server, ":") && !e.isIPv6():
		return fmt.Errorf("server %s is neither a name nor an address: give a port by the mount option port=: %w", server, volume.ErrInvalid)
	case !e.isAddress() && !isHostName(e.server):
		return fmt.Errorf("server %s is neither a name nor an address: %w", server, volume.ErrInvalid)
	case !strings.HasPrefix(e.path, "/"):
		return fmt.Errorf("path %s does not begin with a slash: give the path that the server exports: %w", path, volume.ErrInvalid)
	case strings.ContainsFunc(e.path, isControl):
		return fmt.Errorf("path %s holds a control character: %w", path, volume.ErrInvalid)
	case len(e.path) > maxPath:
		return fmt.Errorf("path %s is longer than the %d bytes that a server takes: %w", path, maxPath, volume.ErrInvalid)
	}
	return volume.ValidatePathNoBacksteps(e.path)
}

// maxPath is the longest path that the kernel accepts, in bytes.
const maxPath = 1024

func (e export) isIPv6() bool {
	address, err := netip.ParseAddr(e.server)
	return err == nil && address.Is6()
}

// isAddress reports whether the server is an IP address. A zone in it must be the name of a network interface.
func (e export) isAddress() bool {
	address, err := netip.ParseAddr(e.server)
	return err == nil && !strings.ContainsFunc(address.Zone(), func(r rune) bool { return !isNameRune(r) && r != '.' })
}

// isHostName reports whether name is a DNS name. It allows underscores, which some sites use. It refuses a label that begins with a
// dash, because a program could read it as an option.
func isHostName(name string) bool {
	const most, mostOfLabel = 253, 63
	name = strings.TrimSuffix(name, ".")
	if len(name) > most {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > mostOfLabel || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !isNameRune(r) }) {
			return false
		}
	}
	return true
}

// device returns the name of the export in mount calls and in the mount table.
func (e export) device() string {
	if e.isIPv6() {
		return "[" + e.server + "]:" + e.path
	}
	return e.server + ":" + e.path
}

// exportOfDevice returns the export with that device name; false if it is none.
func exportOfDevice(device string) (export, bool) {
	server, path, ok := strings.Cut(device, ":/")
	if !ok {
		return export{}, false
	}
	e := export{server: unbracket(server), path: "/" + path}
	return e, e.check() == nil
}
