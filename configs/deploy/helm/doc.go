// Package helm tests the chart in lockstep: it renders it with helm and decodes the result into the
// types of Kubernetes.
//
// It is a module of its own, so that helm and the API of Kubernetes stay out of lockstep's go.mod.
package helm
