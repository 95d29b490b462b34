package scheduling

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
)

// A volume that was made to be filled is chosen for no claim before it is full, also if it names the claim.
func TestAVolumeThatIsNotFullIsNotChosen(t *testing.T) {
	for name, reserved := range map[string]*v1.ObjectReference{"free": nil, "reserved": {Namespace: "default", Name: "data"}} {
		t.Run(name, func(t *testing.T) {
			pv := newVolume("v", func(pv *v1.PersistentVolume) {
				pv.Spec.ClaimRef = reserved
				metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnPopulate, "Archive.example.com/a")
			})
			p := newPod("p", "data")
			inWorld(t, Options{}, objectsOf(threeNodes(), list(newClass("late"), newClaim("data"), pv, p)), func(w *world) {
				w.requireFits(p)
				change(w, pv, func(pv *v1.PersistentVolume) {
					metav1.SetMetaDataAnnotation(&pv.ObjectMeta, objects.AnnPopulated, "sha256:x")
				})
				w.requireFits(p, "node-1", "node-2", "node-3")
			})
		})
	}
}
