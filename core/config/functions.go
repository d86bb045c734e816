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
		Params:   []function.Parameter{{Name: "name", Type: cty.String, AllowMarked: true}},
		VarParam: &function.Parameter{Name: "default", Type: cty.String},
		Type:     function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if len(args) > 2 {
				return cty.NilVal, function.NewArgErrorf(2, "env takes a name and at most one default")
			}
			name, what := argument(args[0], "The environment variable")
			value, ok := lookupEnv(name)
			switch {
			case ok && !utf8.ValidString(value):
				return cty.NilVal, function.NewArgErrorf(0, "%s is not valid UTF-8", what)
			case ok:
				return cty.StringVal(value).Mark(fromOutside{}), nil
			case len(args) == 2:
				return args[1], nil
			case args[0].IsMarked():
				return cty.NilVal, function.NewArgErrorf(0, "%s is not set", what)
			}
			return cty.NilVal, function.NewArgErrorf(0,
				"The environment variable %s is not set. Set it where the agent is started, or give a default: env(%q, \"...\")", name, name)
		},
	})
}

// argument gives a function's argument, and a name for messages that leaves out
// one that came from outside itself.
func argument(v cty.Value, what string) (text, named string) {
	plain, marks := v.Unmark()
	if len(marks) > 0 {
		return plain.AsString(), what
	}
	return plain.AsString(), what + " " + plain.AsString()
}

func fileFunction(dir string, read func(path string)) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String, AllowMarked: true}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			name, what := argument(args[0], "The file")
			path := resolve(dir, name)
			if !args[0].IsMarked() {
				what = path
			}
			read(path)
			data, err := readRegular(path, maxIncludedFile)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(0, "%s can't be read: %s", what, reason(err))
			}
			if !utf8.Valid(data) {
				return cty.NilVal, function.NewArgErrorf(0, "%s is not UTF-8 text", what)
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
