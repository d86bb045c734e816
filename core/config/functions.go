package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// fromOutside marks values that come from the environment or from another
// file: they may be secrets, and no message shows them.
type fromOutside struct{}

// serviceRef is what service("web") gives.
type serviceRef struct{ name string }

var serviceRefType = cty.Capsule("service", reflect.TypeFor[serviceRef]())

// evalContext has the functions of a file in that directory. read is told the
// path of every file that is included.
func evalContext(dir string, lookupEnv func(string) (string, bool), read func(path string)) *hcl.EvalContext {
	return &hcl.EvalContext{Functions: map[string]function.Function{
		"env":     envFunction(lookupEnv),
		"file":    fileFunction(dir, read),
		"service": serviceFunction,
	}}
}

func envFunction(lookupEnv func(string) (string, bool)) function.Function {
	return function.New(&function.Spec{
		Params:   []function.Parameter{{Name: "name", Type: cty.String}},
		VarParam: &function.Parameter{Name: "default", Type: cty.String},
		Type:     function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if len(args) > 2 {
				return cty.NilVal, function.NewArgErrorf(2, "env takes a name and at most one default")
			}
			name := args[0].AsString()
			value, ok := lookupEnv(name)
			switch {
			case ok && !utf8.ValidString(value):
				return cty.NilVal, function.NewArgErrorf(0, "The environment variable %s is not valid UTF-8", name)
			case ok:
				return cty.StringVal(value).Mark(fromOutside{}), nil
			case len(args) == 2:
				return args[1], nil
			}
			return cty.NilVal, function.NewArgErrorf(0,
				"The environment variable %s is not set. Set it where the agent is started, or give a default: env(%q, \"...\")", name, name)
		},
	})
}

func fileFunction(dir string, read func(path string)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			path := resolve(dir, args[0].AsString())
			read(path)
			data, err := readRegular(path, maxIncludedFile)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "%s can't be read: %s", path, reason(err))
			}
			if !utf8.Valid(data) {
				return cty.NilVal, function.NewArgErrorf(0, "%s is not UTF-8 text", path)
			}
			// The newline that ends a text file is no part of a password.
			return cty.StringVal(strings.TrimSuffix(string(data), "\n")).Mark(fromOutside{}), nil
		},
	})
}

var serviceFunction = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "name", Type: cty.String}},
	Type:   function.StaticReturnType(serviceRefType),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		return cty.CapsuleVal(serviceRefType, &serviceRef{name: args[0].AsString()}), nil
	},
})

// resolve makes a path of a file absolute or relative to the file's folder.
func resolve(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// typeName says what a value is, for "must be a string, not ...".
func typeName(v cty.Value) string {
	switch ty := v.Type(); {
	case v.IsNull():
		return "null"
	case ty == cty.String:
		return "a string"
	case ty == cty.Number:
		return "a number"
	case ty == cty.Bool:
		return "a bool"
	case ty.Equals(serviceRefType):
		return "a service"
	case ty.IsTupleType() || ty.IsListType() || ty.IsSetType():
		return "a list"
	case ty.IsObjectType() || ty.IsMapType():
		return "an object"
	default:
		return fmt.Sprintf("a value of type %s", ty.FriendlyName())
	}
}
