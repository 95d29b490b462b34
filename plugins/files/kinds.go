package files

import v1 "k8s.io/api/core/v1"

// A volume of one object is a projected volume with one source.

func configMapKind() kind {
	return kind{
		name: ConfigMapName, source: "configMap",
		project: func(vol *v1.Volume) *v1.ProjectedVolumeSource {
			c := vol.ConfigMap
			if c == nil {
				return nil
			}
			return only(c.DefaultMode, v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{
				LocalObjectReference: c.LocalObjectReference, Items: c.Items, Optional: c.Optional,
			}})
		},
		blank: func(vol *v1.Volume) { vol.ConfigMap = &v1.ConfigMapVolumeSource{} },
	}
}

func secretKind() kind {
	return kind{
		name: SecretName, source: "secret", inMemory: true,
		project: func(vol *v1.Volume) *v1.ProjectedVolumeSource {
			s := vol.Secret
			if s == nil {
				return nil
			}
			return only(s.DefaultMode, v1.VolumeProjection{Secret: &v1.SecretProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional,
			}})
		},
		blank: func(vol *v1.Volume) { vol.Secret = &v1.SecretVolumeSource{} },
	}
}

func downwardAPIKind() kind {
	return kind{
		name: DownwardAPIName, source: "downwardAPI", inMemory: true,
		project: func(vol *v1.Volume) *v1.ProjectedVolumeSource {
			d := vol.DownwardAPI
			if d == nil {
				return nil
			}
			return only(d.DefaultMode, v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: d.Items}})
		},
		blank: func(vol *v1.Volume) { vol.DownwardAPI = &v1.DownwardAPIVolumeSource{} },
	}
}

func projectedKind() kind {
	return kind{
		name: ProjectedName, source: "projected", inMemory: true,
		project: func(vol *v1.Volume) *v1.ProjectedVolumeSource { return vol.Projected },
		blank:   func(vol *v1.Volume) { vol.Projected = &v1.ProjectedVolumeSource{} },
	}
}

func only(defaultMode *int32, source v1.VolumeProjection) *v1.ProjectedVolumeSource {
	return &v1.ProjectedVolumeSource{DefaultMode: defaultMode, Sources: []v1.VolumeProjection{source}}
}
