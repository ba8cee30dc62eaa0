// Package fencepostpb is the API of Fencepost, generated from its proto files.
package fencepostpb
